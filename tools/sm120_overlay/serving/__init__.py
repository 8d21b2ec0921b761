"""What knows SGLang and FlashInfer: the CPU rig, compile proofs. It knows nothing of patches."""

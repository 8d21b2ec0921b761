"""Pins, sources, patches, edits, targets: a patch queue that knows nothing of SGLang or of GPUs."""

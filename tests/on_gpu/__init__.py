"""What each patch must show on a card: `check_<slug>.py`, run by `verify --on-gpu` in the environment that is asked.

Only what that environment's own interpreter can run may live here: the standard library, its torch, its SGLang and
FlashInfer; no pytest and nothing of ours. A check calls upstream's public functions on the device and gives an answer;
where it cannot (a patch, a module, a compiler that is not there) the answer is "not shown", never a yes.
"""

"""Compile proofs: a source against the headers of a tree, for SM120, on a machine without a GPU.

`toolchain` finds or installs nvcc, `cache` remembers results by content, `compile` is what a test calls.
`include/` holds the headers that proofs bring themselves: stand-ins for libraries that nvcc's packages lack, and a
CUDA runtime that records launches instead of making them.
"""

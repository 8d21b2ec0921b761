"""One file per verb, each with one public `main(argv) -> int`; `_targets` holds what they share."""

"""One file per verb, each with one public `main(argv) -> int`; `_options`, `_targets` and `_show` are shared."""

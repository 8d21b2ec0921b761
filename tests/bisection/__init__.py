"""Tests of bisection: which change of upstream's is behind a measurement."""

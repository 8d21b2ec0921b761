"""Properties that hold for whatever comes, tried on random input, and the stored inputs that once broke something."""

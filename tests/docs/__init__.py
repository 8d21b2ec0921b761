"""Documents that are made from the code and its tests, the makers of them, and the tests that hold them current."""

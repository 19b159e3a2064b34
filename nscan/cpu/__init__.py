"""Code generation for the CPU."""

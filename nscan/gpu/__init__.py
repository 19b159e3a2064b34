"""The CUDA target; imported only when it is used."""

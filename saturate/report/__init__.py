"""What a run TELLS: rates, ceilings, advice, console, TensorBoard and files."""

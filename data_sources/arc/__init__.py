"""ARC's puzzles of coloured grids as tasks: the answer is a program, which is tried on inputs that it has not seen."""

"""`forgelm serve` as a process, with its engine process: starts, faults, signals, ends."""

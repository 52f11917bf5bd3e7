"""The `forgelm bench` command: statistics by hand, measurements on real models, the command as a process."""

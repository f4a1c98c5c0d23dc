"""What the machine gives: cores, memory, processes, storage and the files of a user."""

"""5: command-line arguments and files → the layers before."""

"""5: argv, HTTP, files → the layers before."""

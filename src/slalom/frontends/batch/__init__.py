"""A file of prompts and wishes to a file of texts, resumable, on this machine or on a Ray cluster: slalom batch."""

"""One module per client library, run by client_process.py; nothing here is imported by pytest."""

"""The protocol, sans I/O: neither trio nor zmq is imported below this line."""

"""Parts of transports: headers of calls, progress beside computation, nodes and their hierarchy."""

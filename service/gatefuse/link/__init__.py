"""What goes between a frontend and a worker of the same node: messages over a socket, rows in shared memory."""

"""What the processes of a service leave for each other in the run folder."""

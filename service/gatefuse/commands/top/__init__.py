"""`gatefuse top`: what servers do now, in a terminal."""

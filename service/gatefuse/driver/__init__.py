"""The process of `gatefuse serve`: starts the others, decides what is loaded, watches over them."""

"""The device work of one worker: what is loaded, and how a batch gets from its slot through the device and back."""

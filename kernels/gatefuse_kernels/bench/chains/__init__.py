"""`gatefuse bench elementwise`: chains beside the copy ceiling, torch's own ops and torch.compile."""

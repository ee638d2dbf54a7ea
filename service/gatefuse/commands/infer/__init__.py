"""`gatefuse infer`."""

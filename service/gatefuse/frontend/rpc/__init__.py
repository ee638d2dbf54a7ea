"""The methods of `inference.GRPCInferenceService`, one module per topic; `servicer` puts them together.

A topic is a class with `extensions`, the names by which server metadata lists it while it is on, and `methods()`, its
methods' handlers by name. A method that no topic has is answered by `absent`.
"""

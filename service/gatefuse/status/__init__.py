"""What a service does now, for people: from two moments of its metrics to the figures that the page and `top` show.

Pure but for the `monitor`, which takes the samples while somebody looks.
"""

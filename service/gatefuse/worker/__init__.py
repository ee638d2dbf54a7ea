"""The process that owns one device."""

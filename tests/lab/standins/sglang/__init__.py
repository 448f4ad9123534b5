"""Stands where SGLang would be, so that its command line reads as on a real server."""

"""Traces: what two runs did, in the order in which they did it, and where they part first."""

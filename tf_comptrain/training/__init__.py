"""Training that goes on after running out of memory, or being killed: `ct.fit`, and what it saves."""

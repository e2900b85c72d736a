"""Reads and writes sound: SGLang imports it with its server, and a text model needs none."""

"""Inference engines as servers, shared by trainers and evaluation."""

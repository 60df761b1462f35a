"""Processes that look at a training while it goes on: an evaluator and a viewer. Neither can change what is learned."""

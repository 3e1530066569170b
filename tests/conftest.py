"""Lets tests in any folder import the helpers that lie beside this file."""

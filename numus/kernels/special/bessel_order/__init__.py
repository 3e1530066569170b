"""Bessel, modified Bessel, spherical and Struve functions of any order."""

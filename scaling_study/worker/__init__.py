"""Code that every script runs in its ranks.                                                             [torch]"""

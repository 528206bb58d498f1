"""What every script runs inside its ranks.                                                              [torch]"""

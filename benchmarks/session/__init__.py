"""What a session costs: the parts of `bench_session.py`, each with its floor or peer."""

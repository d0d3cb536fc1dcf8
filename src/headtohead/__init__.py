"""Head to Head: you changed one thing in a transformer. Did it help, really?"""

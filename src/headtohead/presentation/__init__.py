"""Tables, charts and number formats shared by every report. Imports no torch."""

"""Check and complete the settings of experiment files where `config` alone cannot: file paths and registered names."""

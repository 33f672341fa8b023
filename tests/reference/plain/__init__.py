"""Plain forms give what the package, torch and transformers give, repeat each
other to the letter, and their examples hold."""

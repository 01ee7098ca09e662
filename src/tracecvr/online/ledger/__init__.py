"""The ledger: open clicks and what is known of them, the live twin of `TableSource`, kept in files."""

"""From rows to what a page says: sentences, numbers, words. No query is made here."""

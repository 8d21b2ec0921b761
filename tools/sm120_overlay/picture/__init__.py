"""Pictures of what a verb found: rows over time, as a page or an image. Nothing here knows git, patches or SGLang."""

"""The sections of a report, one module each: section(material) -> Section, whatever the study has or lacks."""

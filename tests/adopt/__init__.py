"""Tests of the verb `adopt`: what people have becomes patches, exactly or not at all."""

"""Class-activation maps of a training's best model, and whether they show the instrument: `scaling-study maps RUN`.

best.pt --evaluate.restored--> model --activation.py--> maps of each test frame --scored.py--> scores, pictures
                                                                          records/maps.py --> <trial>/maps/
"""

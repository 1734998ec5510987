// Stands in for the theme's file of this name, 1.5 MB of which a page uses thirteen icons: the
// theme's own web font, which its style sheet already names, draws the same ones.

#include "demo_prompt.h"

namespace lynx {
namespace {

// The facts are spread over all sections: the demo cuts the end, and what is left must still make a whole article.
constexpr std::string_view kDocument = R"(Handbook of the Orsel Ridge Lynx Station

1. The station

The Orsel Ridge Lynx Station stands at 1,840 meters above the valley of the river Tamme. It was a customs hut until
1971, then a shelter for shepherds, and since the spring of 2009 it has been the home of a small research group that
studies the lynxes of the eastern range. Five people work here from April to November. Two of them stay through the
winter, because the snow shows what the summer hides: every track, every kill, and every path from one forest to the
next.

The station has one large room with a stove, a workshop, a cold store, and four bunks under the roof. Electricity comes
from eighteen solar panels and a small turbine in the Velk stream, which freezes in most years between the middle of
January and the first week of March. In that time the batteries must last through the night on sunlight alone. The
rule is simple: when the main battery falls below forty percent, the kettle goes back on the stove, the lamps are
turned down, and only the radio and the computer that reads the pictures stay on.

The first head of the station was Marta Holub, a biologist who had counted eagles in the same valley for eleven years.
She chose the place for its view. From the bench at the south wall you can see three of the four forests in which the
lynxes live: Low Arven, the Black Comb, and the long slope that shepherds call the Sleeve. The fourth forest, Upper
Arven, lies behind the ridge. It can be reached on foot in three hours, or by radio in a fraction of a second when the
relay is awake.

2. The animals

In the last count, which ended on 30 September 2023, the group knew twenty-three adult lynxes and nine kittens by
sight. Every lynx has its own pattern of spots, and the pattern stays the same for life. Two clear pictures, one of
each side, are enough to know an animal again years later. Each adult is given a short name by the person who first
photographs it. The oldest lynx in the records is a female called Bramble, first seen in 2011, who raised seven litters
in Low Arven and was still hunting in the winter of 2022.

A male lynx in this range uses between 180 and 260 square kilometers, a female about half as much. They hunt mostly roe
deer and hares, and return to a large kill for up to six nights. They are quiet for most of the year. In February and
March the males call from the rocks, a rough, rising cry that carries across the valley, and the visitors of the inn at
Tamme Bridge sometimes telephone to ask whether someone needs help.

Kittens are born at the end of May. Nobody goes near a den before the first of August, not even when a camera has
failed there. A lost picture can be taken again next year, Marta Holub used to say, but a lost den stays lost.

3. The cameras

There are sixty-four cameras in the four forests, two at each of thirty-two sites. They look at each other across a
path from a distance of six meters, so that both sides of an animal are taken in the same moment. A camera wakes when
something warm moves in front of it, takes three pictures within one second, and goes back to sleep. With a fresh set
of batteries it does this for about five months in summer and ten weeks in deep winter.

Until 2016 the memory cards were collected on foot. It took nine days to visit all the sites, and it was common to find
that a camera had stopped in its first week, or had taken four thousand pictures of a swaying branch. Since then the
cameras have sent their pictures by radio to a relay on each forest's highest tree, and the relays pass them on to the
station. The radio is slow. On a clear and dry day it carries about as much as an old telephone modem; in wet snow it
carries a quarter of that, and on some nights nothing at all.

For this reason nothing is sent before it is known to be useful. Each relay holds a small computer that looks at the
pictures first. It drops the empty ones, makes the others smaller, and sends a short note ahead: the site, the time,
the temperature, and what it believes the animal to be. The full picture follows when the link has room. The station
can begin its work with the note and correct it later, when the picture has arrived. Ilya Brandt, who built the first
relay from parts of an old weather balloon, put it in one sentence that is now painted above the workshop door: send
first what helps first, and check everything at the end.

4. The rules of the radio

Rule one: the evening call comes before everything else. At seven o'clock every person who is outside speaks with the
station for one minute and says where they are, where they will sleep, and how much food they have. Pictures wait while
people speak.

Rule two: every picture carries a number, and no number is used twice. If a number is missing, the station asks for it
again by number, up to five times, and then writes the gap into the log. A gap that is written down is a fact. A gap
that nobody noticed is a mistake.

Rule three: a picture that arrives damaged is never repaired by hand. It is thrown away and asked for again. In March
2018 a half received picture was taken for a new male in the Black Comb, and two people spent four days looking for an
animal that was a tree stump with snow on it.

Rule four: the relay on the Sleeve may be woken at most six times a day, because it stands in the shade from October to
February and its battery is the smallest. Whoever wakes it a seventh time carries the next battery up the hill.

5. The year

April is for repairs. The snow has moved posts, bent antennas, and let mice into the boxes. Every camera is opened,
dried, and tested before it is put back, and its clock is set. In May the group counts the roe deer at dawn from eleven
fixed points. From June to the end of July only the paths far from the dens are used.

August and September are the busiest months. Students come from the university in Harrow, eight at most, and learn to
read tracks, set cameras, and compare spots. Each student follows one lynx through the pictures of all years and writes
its biography, two pages long. These biographies are read aloud on the last evening, with soup and plum cake, and the
best one is kept in the station's library next to the stove.

In October the visitors leave and the cold store is filled: flour, oats, dried apples, hard cheese, and forty liters of
oil. November brings the first storms. From December to March the two winter people walk fixed lines on skis after each
fresh snowfall and note every track they cross. It is slow work, and the log books of these months are the most
valuable ones that the station owns.

6. Guests and neighbors

The station is not an island. The shepherds of the Sleeve lose a few lambs each year, and for a long time every lost
lamb was said to be the work of a lynx. In 2013 Marta Holub made an agreement with them. Whoever finds a dead animal
calls the station, and within one day somebody comes to look at it. If a lynx did it, the shepherd is paid the full
price from a fund that the inn, the university, and the railway keep filled. In ten years 147 dead sheep and lambs were
looked at. Nineteen of them had been killed by lynxes, thirty-one by dogs, and most of the others by falls, illness, or
lightning.

Guests are welcome on Sundays from May to October, between ten and four. They are given tea, shown the pictures of the
week, and asked for three things: keep dogs on a leash, stay on the marked paths, and tell nobody where a camera
stands. Children who can name five kinds of tracks receive a small tin badge with a paw on it. About six hundred badges
have been given away so far, and one of the first was worn by Petra Sand, who now works here.

7. From the log

3 February 2021. Minus nineteen at dawn, no wind. The Velk is frozen. Bramble passed site 14 at 05:12 and again at
06:40, both times alone. The relay in Low Arven sent the note within a minute and the picture after two hours.

17 August 2022. Three kittens at site 9, playing with the antenna cable. The cable lost. Petra Sand has covered it with
a length of garden hose, which the kittens seem to like less.

2 November 2022. The last load of oil came up with two mules, both in a bad mood. First snow at noon, eleven centimeters
by the evening. All winter boots greased, all lamps filled. Jonas Weil is on his way to the inn and will be back in
April with new batteries.

9 January 2023. Storm for the third day. No pictures from Upper Arven, notes only. We have drawn our map from the notes
and will check it when the sky clears.

13 January 2023. The sky has cleared and 212 pictures came in overnight. The map was right in all places but one: the
fox at site 27 was a young lynx, a female that nobody has seen before. Petra has named her Sedge.
)";

// Worded so that a 135M model's greedy answer to 2,048 prompt tokens goes somewhere: asked for a summary, it repeats
// one sentence for ever. The answer is close to a copy, so its drafts are accepted more often than those of free text.
constexpr std::string_view kQuestion = "Copy the first two sentences of each section of the handbook.";

}  // namespace

std::string_view DemoDocument() { return kDocument; }

std::string_view DemoQuestion() { return kQuestion; }

}  // namespace lynx
